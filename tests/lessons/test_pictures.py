"""The opening pictures: SVG that parses, and draws what pool, tables and texts say."""

import random
import re
from itertools import islice, pairwise
from xml.etree import ElementTree

import pytest
from pagedlab_lessons.broken import NeverCopies
from pagedlab_lessons.memory import Contiguous, FirstFit
from pagedlab_lessons.pictures.n01 import taken_places
from pagedlab_lessons.pictures.n02 import position_to_slot
from pagedlab_lessons.pictures.n03 import two_stories
from pagedlab_lessons.pictures.n04 import Tried, beam_tree, draw_step, lines_of_descent, parents_of
from pagedlab_lessons.pictures.n05 import two_prompts
from pagedlab_lessons.pictures.n10 import draw_windows, windows_of
from pagedlab_lessons.pictures.n11 import draw_pipeline, draw_ring
from pagedlab_lessons.pictures.n12 import checks_of, draw_drafts, moments_of

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.prefix import PrefixCache, hash_chain
from pagedlab.recipes.speculative import PromptLookup, SpeculativeLLM
from pagedlab.recipes.trace import record
from support.engines import exactly


def said(picture):
    """What its parts say when they are pointed at; the picture is XML."""
    return [part.get("data-say", "") for part in ElementTree.fromstring(picture).iter("g")]  # noqa: S314


def told(table_class, texts, shared):
    """Stories of the same `shared` first words, each written word by word beside the other."""
    split = [re.findall(r" ?[^ ]+", text) for text in texts]
    first = table_class(BlockPool(32, 4))
    first.append(shared)
    tables = [first, first.fork()]
    for _ in split[0][shared:]:
        for table in tables:
            table.append(1)
    return [(words, table.slots(0, len(words))) for words, table in zip(split, tables, strict=True)]


def test_two_stories_mark_what_was_overwritten_and_what_was_taken():
    right = told(BlockTable, ["a b c d e <f> fox & g", "a b c d e owl Xenia y z"], 5)
    wrong = told(NeverCopies, ["a b c d e <f> Xenia & g", "a b c d e owl Xenia y z"], 5)
    parts = said(two_stories(wrong, right, 4))
    assert "story 0 wrote '<f>'; memory holds 'owl', of story 1" in parts
    # A slot holds a key and a value, so the same word in it is overwritten, too.
    assert "story 0 wrote 'Xenia'; memory holds 'Xenia', of story 1: its key and value depend on other words" in parts
    picture = two_stories(wrong, right, 4)
    assert picture.count("block 1: one block, in both tables") == 2, "once in each story"
    picture = two_stories(right, right, 4)
    assert not any("memory holds" in part or "is a word of" in part for part in said(picture))
    assert re.findall(r">block (\d+): one block, in both tables<", picture) == ["0", "0"]


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_of_beams_draws_every_block_once_with_all_who_hold_it(seed):
    chance, width, size = random.Random(seed), 4, 3
    prompt = list(range(100, 100 + chance.randint(3, 8)))
    (table := BlockTable(BlockPool(128, size))).append(len(prompt))
    beams = [([i], table.fork()) for i in range(width)]
    run, histories = [], []
    for _ in range(8):
        run.append([(ids, table.block_ids[:]) for ids, table in beams])
        for _, table in beams:
            table.append(1)
        parents = [chance.randrange(width) for _ in range(width)]
        beams = [([*beams[p][0], 20 + i], beams[p][1].fork()) for i, p in enumerate(parents)]
        histories.append(parents)
    assert parents_of(run) == histories[:-1]
    lines = lines_of_descent(histories[:-1], width)
    for step, at in enumerate(run):
        drawn = [part.split(":")[0] for part in said(beam_tree(run, step, prompt, size, str)) if "held by beam" in part]
        holders = {}
        for _, (line, (_, blocks)) in sorted(enumerate(zip(lines[step], at, strict=True)), key=lambda of: of[1][0]):
            for block in blocks[len(prompt) // size :]:
                holders.setdefault(block, []).append(str(line))
        assert sorted(drawn) == sorted(f"block {b}, held by beam {' and '.join(who)}" for b, who in holders.items())


def test_a_line_of_descent_goes_on_with_the_best_child_and_restarts_where_it_ends():
    assert lines_of_descent([[0, 1, 2], [1, 1, 0], [2, 2, 2]], 3) == [[0, 1, 2], [0, 1, 2], [1, 2, 0], [0, 1, 2]]


@pytest.mark.parametrize("seed", range(20))
def test_two_prompts_share_what_the_cache_shares(seed):
    chance = random.Random(seed)
    common = [chance.randrange(9) for _ in range(chance.choice([0, 3, 4, 11, 40, 130]))]
    cache, prompts = PrefixCache(BlockPool(512, 4)), []
    for _ in range(2):
        ids = common + [chance.randrange(9) for _ in range(chance.randrange(12))]
        table = cache.match(ids)
        found = table.num_tokens
        table.append(len(ids) - found)
        cache.register(table, ids)
        prompts.append(([f" <{i}>" for i in ids], table.block_ids, [name.hex()[:6] for name in hash_chain(ids, 4)]))
    picture = two_prompts(prompts, 4)
    assert len([part for part in said(picture) if ", in both tables" in part]) == min(24, found // 4)
    assert f"{found} of them are found in the first" in picture


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 16])
def test_windows_keep_host_and_gpu_in_order(steps, ahead):
    windows = [*islice(windows_of(steps, 4, 1.5, ahead), 12)]
    host = sorted(span for window in windows for span in (window.planned, window.collected))
    for spans in (host, [window.computed for window in windows]):
        assert all(first.end <= second.begin for first, second in pairwise(spans))
    for window in windows:
        assert window.planned.end <= window.computed.begin
        assert window.computed.end - window.computed.begin == 1.5 * steps
        assert window.collected.begin >= window.computed.end
    for first, second in pairwise(windows):
        assert (second.planned.end <= first.collected.begin) == ahead
    drawn = draw_windows(steps, ahead, 4, 1.5)
    answers = next(window for window in windows if window.planned.begin >= 20)
    assert f"has its first token {answers.collected.end - 20:.0f} ms later" in drawn


def test_drafts_stand_in_their_slots_before_and_after_the_check(tiny):
    llm = SpeculativeLLM(
        tiny, block_size=8, num_blocks=24, drafter=PromptLookup(k=4), prefix_caching=False, verbose=False
    )
    said_twice = "The box is red. The chair is blue. The box is red. The chair is"
    checks, words = checks_of(record(llm, [said_twice], [exactly(24)]))
    assert sum(check.accepted for check in checks) == llm.stats.accepted_tokens
    assert sum(len(check.drafted) for check in checks) == llm.stats.drafted_tokens
    for check, *moments in zip(checks, *[iter(moments_of(checks))] * 2, strict=True):
        before, after = (draw_drafts(checks, words, moment, 8) for moment in moments)
        assert before.count("font-style:italic") - 1 == len(check.drafted), "one is in the legend"
        assert after.count("line-through") - 1 == len(check.drafted) - check.accepted
        held = -(-(check.position + check.accepted) // 8)
        assert sum("slots known" in text for text in said(after)) == held
        assert "textLength" not in after.narrow, "no word is squeezed on a phone"
        assert re.findall(r">block (\d+)</text>", before.narrow) == [str(number) for number in check.blocks]


def test_the_user_who_is_out_of_memory_is_the_first_that_does_not_fit():
    requests = [(300, 40), (500, 60), (200, 20), (700, 10)]
    text = taken_places(requests, Contiguous(FirstFit(2048), lambda _: 1024), row=512)
    assert "No memory for user 3. 2 of 4 users fit; 2,048 of 2,048 slots are reserved." in text
    assert [part for part in said(text) if part] == [
        f"User {i}: a prompt of {prompt} tokens, 1,024 slots reserved, {1024 - prompt} of them empty"
        for i, prompt in ((1, 300), (2, 500))
    ]


def test_a_word_lies_where_its_table_says():
    pool = BlockPool(6, 4)
    pool.allocate()  # somebody else's
    (table := BlockTable(pool)).append(6)
    parts = said(position_to_slot(list("abcdef"), table))
    for at in range(6):
        where = f"says block {table.block_ids[at // 4]}: slot {table.slot(at)}"
        assert sum(part.startswith(f"position {at} ") and part.endswith(where) for part in parts) == 2, (
            "also on a narrow page"
        )


@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (3, 3), (4, 3)])
def test_a_pipeline_is_idle_as_its_headline_says(stages, batches):
    first_stage = [part for part in said(draw_pipeline(stages, batches)) if part.startswith("Stage 0")]
    idle = sum("idle" in part for part in first_stage) / len(first_stage)
    assert idle == pytest.approx(1 - batches / stages)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_ring_ends_with_every_total_on_every_rank(ranks):
    for hop in range(2 * (ranks - 1) + 1):
        parts = said(draw_ring(ranks, hop))
        totals = sum("the total" in part for part in parts)
        assert totals == ranks * max(0, hop - ranks + 2)


def test_a_step_of_a_search_says_who_wins_and_what_becomes_of_each_beam():
    beams = [Tried("a", -1.0, [("x", -0.2), ("y", -0.4)]), Tried("b", -1.5, [("x", -0.3), ("z", -0.9)])]
    picture = draw_step(beams, 2)
    assert sum("one of the largest sums" in part for part in said(picture)) == 2
    assert "'y': -1.00 and -0.40 are -1.40, one of the largest sums." in said(picture)
    assert "it is forked: 2 win" in picture
    assert "sum -1.50; it is dropped" in picture
