"""What only the notebooks use: nothing outside widgets, checks, notebooks and tools imports it.

memory, simulation, traces    KV arithmetic, and four allocators on one trace of requests        01, 02
broken                        planted bugs                                                       02, 03, 05
puzzles, fence, workshop      eight puzzles, watched while they run, and their pictures  07
ladder, tracer                the road to the kernel in seven rungs; who loads which slots        07
timeline, draft_film          who did what in every step; drafts, solid or wiped                 09, 12
journey, two_pools            one request through the whole engine; one table and two pools       10, 11
baseline                      the same texts from transformers' own `generate`                   08, 10
pictures, races, drawing      what opens a notebook, and what that is drawn with                  01-05, 08, 09
plots, colors                 figures, and the palette they share with the widgets
replay                        a prefix cache without a model, and the best order of eviction      05
show, machine                 sources shown, what this machine can do
"""
