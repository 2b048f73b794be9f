"""The closing questions of each notebook, as data: three each, one right answer, and a reason for every answer.

    quiz_of("02")[0].answers[1].why

A question begins with `?`, a right answer with `+`, a wrong one with `-`; behind the bar stands the reason. A line that
begins with a space goes on with the one before. Shown by `pagedlab.widgets.quiz`.
"""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    text: str
    why: str
    right: bool


class Question(NamedTuple):
    text: str
    answers: tuple[Answer, ...]


def quiz_of(notebook: str) -> tuple[Question, ...]:
    """The questions of a notebook, by its two digits. `ValueError` if it has none."""
    if notebook not in QUESTIONS:
        raise ValueError(f"there is no quiz {notebook!r}: choose one of {', '.join(QUESTIONS)}")
    questions: list[Question] = []
    for line in QUESTIONS[notebook].replace("\n ", " ").strip().splitlines():
        kind, text = line[0], line[2:]
        if kind == "?":
            questions.append(Question(text, ()))
        else:
            said, why = text.split(" | ")
            last = questions[-1]
            questions[-1] = last._replace(answers=(*last.answers, Answer(said, why, kind == "+")))
    return tuple(questions)


QUESTIONS = {
    "00": """
? Where is the order of a conversation's blocks kept?
- In where they lie: left comes before right. | Every conversation takes whatever block is free, so their squares mix.
+ In its block table. | A short list of block numbers: the list is the order, and the memory need not know it.
- In each block, which names the next. | Then you would have to walk from the start; the table finds any position in
 one step.
? 103 tokens in blocks of 16. What is in the last block?
+ Seven tokens, and room for nine. | Six full blocks hold 96. The room is kept for this conversation's next tokens.
- Seven tokens, and nine of the next conversation. | A block is filled by one text. Strangers in one block would have to
 leave at the same time.
- Nothing, six blocks are enough. | Six blocks hold 96 tokens; the other seven need a seventh block.
? A conversation ends. What becomes of its blocks?
- They are overwritten with zeros first. | Nobody reads a block that no table lists, so there is nothing to erase.
- They stay until somebody tidies up. | There is no tidying: free is what a counter says, and it says so at once.
+ They are free for the next one at once. | Its table is gone, and with it the only way to read them.
""",
    "01": """
? Eleven requests, and a card of 24 GiB is full. Of what?
- Of the model's weights. | They take 1.1 GiB here.
+ Of places for tokens that have not come. | Each request keeps room for 16,384; only 6 % of the places hold a token.
- Of prompts that are longer than expected. | The prompts are known and short. What nobody knows is how long the answers
 will be.
? An oracle knows every length in advance and still uses less than half. Why?
+ It keeps a place for every future token from the start. | And it needs the places in one piece. Pages are taken when
 they are needed.
- It reserves too much, to be safe. | It reserves the right length. What hurts is when, and that it is one piece.
- Some requests are longer than it says. | It is never wrong; that is what makes it an oracle.
? What waste is left with pages?
- Holes between the requests. | A hole is made of blocks, and any block fits anybody.
- The block tables. | A few bytes an entry, against 192 KiB for a block of Qwen2.5-0.5B.
+ The empty end of each request's last block. | Less than one block a request, half a block on average.
""",
    "02": """
? The table is [5, 12, 3], a block holds 16. In which slot is token 20?
- 20 | That is its position in the text. The table says where the text lies.
- 5 x 16 + 20 = 100 | As if the blocks were neighbours. Token 20 is in the second block, which is 12.
+ 12 x 16 + 4 = 196 | 20 // 16 = 1, the second entry; 20 % 16 = 4 is the place in it.
? A sequence has 32 tokens, in blocks of 16. How many does its last block hold?
- 0, since 32 % 16 is 0. | The remainder is 0 because the block is full. Engines have had this bug.
+ 16 | Two full blocks. A third is taken when token 32 comes, and not before.
- It has a third block, still empty. | A block is taken with its first token. Taken early, others go without it.
? All counts are right, and free and used blocks add up. Is the pool right?
- Yes, that is what right means. | The sums hold too when a table lists its blocks in the wrong order, or a copy is
 forgotten.
+ Not proved yet. | Compare what it does with a plain model, operation by operation, as the checks here do.
- Yes, once it has run for long enough. | A bug that keeps the sums stays hidden however long you look at sums.
""",
    "03": """
? A sequence of 1,000 tokens is forked three times. What is copied by the forks?
- All of its 63 blocks, three times. | That is the plain way, which sharing replaces.
+ Lists of block numbers. | Each block's count goes up by three. The memory is not touched.
- Its last block, three times. | Too early: nobody has written yet, and one of the four will never need a copy.
? Four sequences share a half-filled block, and each appends a token. Copies?
- 4, one each. | The last to write finds a count of 1 and stays where it is.
- 1, for all of them. | Then the other three would still write into one block.
+ 3 | Each writer but the last finds a count above 1, copies, and lowers it.
? When may a block be given back?
- When the sequence that took it ends. | A fork may still read it.
- When that sequence and all its forks have ended. | A fork of a fork is counted there by nobody.
+ When its own count is zero. | Whoever reads it is counted on it, whatever the family looks like.
""",
    "04": """
? Four samples of a prompt of 64 tokens, blocks of 16. Blocks copied by copy-on-write?
- 3, as always for four sequences. | Only if the prompt ends inside a block, where all four would write.
+ None. | The prompt ends with its block. Each sample begins a new block of its own.
- 16, the prompt's four blocks for each. | The prompt's blocks are shared and only read.
? A beam is dropped. What happens to its keys and values?
- They are erased. | Nothing is erased; the next owner writes over them.
- The other beams' rows move up. | That is a cache with a row for each beam. Here a beam is a table.
+ Counts go down. | Blocks that only this beam held are free; those that others hold stay.
? Why do beams save blocks even behind a prompt of one token?
- The prompt is shared. | One token is next to nothing. Samples save nothing there.
+ They share their own past. | A few steps back they have one ancestor; only the last stretch differs.
- They are shorter than samples. | They have the same number of tokens each.
""",
    "05": """
? The same 16 tokens stand behind two different beginnings. May they share a block?
- Yes: same tokens, same keys. | In the first layer at best. Above it, attention has mixed in what came before.
- Yes, if their positions are equal too. | Position is not past: "is green" behind a chair and behind a bell differ.
+ No. | So a block's name contains the name of the block before it, and thereby all of its past.
? A block is found by its hash, and its own 16 tokens are the right ones. Is it safe to use?
- Yes, both together cannot be wrong. | T behind A and T behind B: same hash by a collision, same tokens, another past.
- Yes, if it is full. | Only full blocks are named at all, so that excludes nothing.
+ Only if its parent is the block matched just before. | Or if the hash is one that nobody can collide.
? When is a block put into the prefix cache?
- When it is allocated, so that others can share it soonest. | Its keys and values do not exist yet. A hit would read
 whatever lay there.
+ When its keys and values have been computed. | Then a hit reads what it expects, even if the request is aborted later.
- When its request ends. | Safe, but others can use it long before that.
""",
    "06": """
? Why is it the largest score that is taken away before exp?
- Any other number gives another result. | Any number cancels in the quotient.
+ Then no weight is above 1. | Any number would cancel; the largest keeps exp finite, and one weight at exactly 1.
- It makes large scores stand out. | It changes no weight after the division.
? A block brings a larger maximum. What happens to total and out?
+ Both are multiplied by exp(old m - new m). | The past was measured from the old maximum; one factor corrects it.
- Nothing: the division at the end sees to it. | It divides by a total in which the past counts too much.
- They are computed anew from the first block. | That is the second pass that the online way does without.
? The unused slots of the last block hold NaN, and their weights are 0. What comes out?
- The right answer: a weight of 0 takes them out. | 0 x NaN is NaN.
- An error. | No line raises. The NaN travels through all layers, and the model says one token for ever.
+ NaN, unless their values are left out or replaced. | Mask the values, not only the scores.
""",
    "07": """
? In rung 3, pages of 16 and of 64 are within one per cent. Why?
- The page ids are kept in registers. | Rung 2 reads them in the same way, and there it cost time.
+ The kernel waits for memory, and the look-ups fit into the wait. | A rung that is busy computing has no such wait.
- Larger pages hold more tokens. | They do, and the bytes to be read stay the same.
? One sequence of 16,384 tokens reaches 5 % of a copy's speed in rung 3. What helps?
- A larger tile. | It makes each of the 8 programs read more at once; the other multiprocessors still have none.
- Packing more heads. | The group's heads are packed. Each key is loaded once already.
+ More programs: split the sequence and merge. | 8 programs leave 124 of 132 multiprocessors idle.
? A page id is multiplied by the size of a page. Where is it cast to 64 bits?
+ Before the multiplication. | Past 2^31 elements a 32-bit product has lost its upper bits.
- After it. | Too late: the bits are gone.
- Nowhere, page ids are small. | They are. Their products with the size of a page are not.
""",
    "08": """
? What was changed in the model to run it on blocks?
- Each attention layer was written anew. | The layers are transformers' own. Only the function they call is another.
+ Nothing. | It calls the attention that is registered by name, and that one writes by slot and reads by table.
- Its weights were put in another order. | A block holds keys and values. Weights know nothing of it.
? In bf16 a text parts from `generate`'s after forty tokens. Is that a bug?
- Yes: the tokens must be equal. | In fp32. In bf16 another order of adding rounds differently.
- No: paging is an approximation. | It approximates nothing; in fp32 the tokens are equal.
+ Look at the two likeliest tokens there, and run it in fp32. | Nearly level and equal in fp32: rounding. Else: a bug.
? Attention that ignores the block table passes a test with one prompt. Why?
+ Its blocks were 0, 1, 2, in this order. | Logical and physical numbers agreed. Test several texts, on used blocks.
- The table is not needed in prefill. | Keys are found through the table in every step.
- The sampler hid it. | Greedy decoding hides nothing; the attention was right, by luck.
""",
    "09": """
? What does the model compute in one step?
- A rectangle, a row for each request. | That is a padded batch; it computes the padding as well.
+ One row with the tokens of all requests, end to end. | Only attention asks whose token it is.
- Either prompts or single new tokens. | Both share a step, and one launch.
? You make the token budget of a step smaller. What changes?
- Everything gets faster. | A long prompt now takes more steps to its first token.
+ Time between tokens gets even, a late prompt waits longer. | No step is long any more, so no reader notices one.
- Fewer blocks are needed. | Blocks follow the tokens that are held, not those of a step.
? The blocks run out. Who gives way?
- The oldest, since it holds the most. | Then nobody is sure to be finished ever.
- Everybody, by one block. | Half a context is of no use: all of them would stand still.
+ Whoever came last, with all its blocks. | The oldest goes on until it is done, and then the next is the oldest.
""",
    "10": """
? A small model's step takes many times longer than reading its weights and keys. Where does the time go?
- Into page look-ups. | They hide behind the reads, as 07 measured.
+ Into starting hundreds of small kernels from Python. | The GPU waits for the next launch most of the time.
- Into copying blocks. | A decode step copies a block only for copy-on-write, and few steps do.
? What is fixed when a step is captured in a CUDA graph?
- The contents of block tables and lengths. | They are read anew at every replay, from buffers that stay in place.
- Nothing, it is captured in every step. | Then nothing would be saved. A replay starts all kernels at once.
+ Kernels, shapes and addresses. | So inputs are written into fixed buffers, and each batch size has its graph.
? More requests at a time: tokens a second go up. And the time between one reader's tokens?
- It goes down likewise. | A step does not get shorter when it has more to do.
+ It goes up, slowly at first. | Steps share the reading of the weights; keys and arithmetic add up.
- It stays the same. | As long as the step waits for launches, nearly; then every request's keys have to be read too.
""",
    "11": """
? Two ranks, one block table. What lies in block 7 of each?
- Different texts: half of the requests each. | That would be two engines. Here both ranks run every request.
+ The same tokens, other heads. | A block id is an index, and each rank uses it on an array of its own.
- The same keys, twice. | Then nothing would be saved. A rank has the keys of its heads only.
? Why are gate and up cut by columns, and down by rows?
+ What the first cut leaves on a rank is what the second needs. | Whole numbers for silu, and one sum at the end.
- The other order does the same with as many sums. | It needs a sum before silu: silu of a sum is not a sum of silus.
- Rows are faster to read. | Both cuts read half of the weights each.
? A model with 8 KV heads fits 3 cards by its bytes. How many do you take?
- 3, with 3, 3 and 2 heads. | All ranks run the same shapes, and wait for the one with the most.
- 3, with one head cut in three. | Its scores would have to be added over the wire before every softmax.
+ 4 | Whole heads, as many on each rank.
""",
    "12": """
? A draft of four: right, right, wrong, right. How many tokens does the step add?
- 2, those that were right before the wrong one. | The model's own token at the wrong place comes for nothing.
+ 3 | Two drafted ones and the model's own behind them.
- 4, the last one is right again. | It was computed behind a wrong token. What comes behind the right one nobody knows.
? What becomes of the keys and values of rejected tokens?
- They are set to zero. | Nobody reads a slot behind the end of a table.
- They go to the prefix cache, for later. | They belong to a text that was never written.
+ Nothing: the table forgets them. | The next tokens are written over them; blocks that held nothing else are released.
? A drafted token is rejected by the rule min(1, p / q). Where does the replacement come from?
- From p, the model's distribution. | Then tokens that the draft likes arrive twice, by acceptance and by redrawing.
+ From what p has more of than q. | Accepted and replaced together are then exactly p.
- From the draft, once more. | Then the text leans towards the draft.
""",
    "13": """
? A handler calls `llm.add` while another thread runs a step. Is that safe?
- Yes, Python's lock protects it. | The lock protects one operation of the interpreter. A step is many, and half done.
+ No: only the owner touches the engine. | Others leave a function in its inbox, and it runs between two steps.
- Yes, since a new request is only appended. | Admission asks for blocks, and the step is changing the tables just then.
? A client closes its window. What if nobody tells the engine?
- The closed socket stops it. | The engine never sees a socket. A handler has to pass the news on.
- Its blocks are cached, so no harm is done. | A running text holds references: its blocks cannot be taken.
+ It goes on writing, for nobody. | And it holds blocks that others wait for. So the handler aborts in a `finally`.
? The salt is the tenant's name and the request's own salt, glued together. What can a spy do?
- Nothing: the tenant comes from the checked key. | Tenant "a", salt "bc" and tenant "ab", salt "c" are one text.
+ Choose a salt that makes the pair equal to another's. | So write the pair in a form that can be read back.
- Guess the hash. | There is no need to: equal salts give equal names.
""",
}
