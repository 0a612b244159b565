"""Tables and figures of the four papers, as configurations for `retrieval research`.

configuration           one table or figure: data sets, variants, metrics, the paper's numbers
tcm mean_field          one module per paper; tables, figures and recipes are in modules beside it
contextual vmf
listing page measured   index of all configurations; docs/papers.md with measured values
labelled_photos         data sets with the papers' splits
transformations         label noise, image noise, fewer classes
runs                    training runs, shared between tables, and their embeddings
metrics                 metrics by name
runner                  execution of a configuration; results with the paper's numbers (`results`)
modern cost drawings    protocols other than plain training; `toys` has two small experiments
"""
