"""OpenAI's HTTP interface over the engine: `python -m pagedlab.serving`, or in a notebook
`BackgroundServer`.

app              the routes: completions, chats, streams, errors, the live page; `create_app`
openai_api       what a request may say, and what an error looks like
engine_thread    the one thread that owns the engine
logprobs         how likely tokens are, in OpenAI's shapes
gate             what stands before the app: host names, sizes, counts
metrics          what Prometheus reads
background       the server in a thread of this process
"""
