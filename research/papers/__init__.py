"""The tables and figures of the four papers, as configurations that `retrieval research` runs.

configuration           what a table or figure is: data sets, variants, metrics, the paper's numbers
tcm mean_field          the papers, item by item; their tables, figures and recipes stand beside them
contextual vmf
listing page            all of them by name; docs/papers.md
worlds transformations  a data set as a paper splits it; wrong labels, strange photos, fewer classes
runs                    settings put together, trained once however many tables use them, embedded
measure                 the metrics by name
runner                  from start to end; results beside the paper's numbers (`results`)
modern cost drawings    the protocols that are no plain training; `toys` for two small experiments
pictures                of results, and of embeddings (`embedding_pictures`), on a `canvas`
"""
