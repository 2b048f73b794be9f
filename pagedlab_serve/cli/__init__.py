"""The command `pagedlab`, which is also `python -m pagedlab_serve`.

- main.py: finds the command that the user names, and runs it
- options.py: the options of each command, with their help
- chat.py: a conversation in the terminal
- conversation.py: the messages of a conversation, its requests to the engine, and its blocks
- screen.py: draws a turn of a conversation, in colour or as plain text
- generate.py: continues prompts
- notebooks.py: copies the notebooks and opens them
- info.py: versions, devices, and the model that would answer
"""
