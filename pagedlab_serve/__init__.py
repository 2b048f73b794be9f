"""OpenAI's HTTP API over the engine: `pagedlab serve`, or `BackgroundServer`.

- app.py: the routes: completions, chats, streams, errors, the live page; `create_app`
- openai_api.py: the fields of requests, and the form of errors
- engine_thread.py: the one thread that owns the engine
- prompts.py: the token ids of prompts
- logprobs.py: log-probabilities in OpenAI's form
- gate.py: checks host names, keys and sizes before the app sees a request
- metrics.py: figures for Prometheus
- background.py: the server in a thread of this process
- serve.py, command_line.py, cli/, hub/: the command `pagedlab`
"""
