"""The checkpoint in data/tiny-qwen2 loads offline and answers in English."""

from pagedlab import LLM, SamplingParams

QUESTIONS = {  # and a word of each answer
    "Why is the sky blue?": "blue",
    "What is a block table?": "block",
    "Tell me a story about a cat and a library.": "library",
    "How does memory work in a computer?": "memory",
}


def test_answers_end_and_are_on_the_subject(tiny):
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    done = LLM(tiny, num_blocks=64, verbose=False).generate(chats, SamplingParams(max_tokens=100))
    outputs = [completion.outputs[0] for completion in done]
    for output, word in zip(outputs, QUESTIONS.values(), strict=True):
        assert word in output.text
    assert [output.finish_reason for output in outputs].count("stop") >= 3
