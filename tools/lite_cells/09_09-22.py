from pagedlab_lessons.widgets import Timeline

places = ("mill", "river", "wood")
story = " ".join(f"On day {i} the cat went to the {place} and slept." for i in range(10) for place in places)
late = model.encode(story)[:300]


def with_a_late_prompt(budget):
    llm = engine(num_blocks=64, max_batch_tokens=budget)
    with Timeline(llm, blocks=False, most_tokens=304) as timeline:
        for prompt in prompts[:4]:
            llm.add(prompt, *asks([36]))
        for _ in range(8):
            llm.step()
        llm.add(late, *asks([8]))
        while llm.step():
            pass
    return timeline.run


first_token = guess("300 prompt tokens, 32 a step, four other texts: steps to the first token?", unit="steps")
