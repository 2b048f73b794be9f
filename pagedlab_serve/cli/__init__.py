"""The command `pagedlab`, which is also `python -m pagedlab_serve`: one file a command.

- main.py: finds the command that the user names, and runs it
- options.py: the options that commands share, and the engine that they ask for
- chat.py: a conversation in the terminal
- generate.py: continues prompts
- serve.py: OpenAI's API over HTTP
- download.py: fetches a model
- notebooks.py: copies the notebooks and opens them
- info.py: versions, devices, and the model that would answer

Torch takes seconds to import. So a command imports it after its first line is printed.
"""
