"""What only the notebooks use. Inside the package, only widgets and checks import it.

Notebooks, benchmarks and tools import it too. What each file is for, and the notebooks that use it:

    memory          KV arithmetic, and four allocators                       01, 02, 10, 11
    simulation      the allocators on one trace of requests                  01
    traces          lengths of requests                                      01, 02, 05, 09
    broken          pools and tables with one planted bug each               02, 03
    kernels07       puzzles, the ladder of kernels, pictures of their loads  07
    watched_ranks   ranks whose caches can be looked at                      11
    baseline        the same prompts through transformers' own `generate`    08, 10
    pictures        nNN.py has the pictures of notebook NN                   01-05, 08-13, 15
    drawing         blocks, words in slots, rows of tokens: what every picture is drawn with
    plots           figures
    figure_words    what is seen of a figure, in words
    colors          the palette of figures and widgets
    replay          a prefix cache without a model                           05
    progress        progress bars                                            04, 06, 08, 10, 12, 13
    show            shows the package's source                               03, 05-13
    machine         says what this machine can do                            00
    readers_code    limits a reader's code, and explains its errors
"""
