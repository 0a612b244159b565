"""Error analysis of a run as one HTML page (`retrieval explain`).

outcomes item_search item_utilities   errors, from vectors and labels
run photos                            explanation of a run directory, its photos
page page_map embedding_map summary   HTML page, its map, summary as text and JSON
"""
