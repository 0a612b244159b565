"""`retrieval explain`: what a run gets wrong, as one page.

outcomes item_search item_utilities   what goes wrong, from vectors and labels
run photos                            from a run directory to what the page shows
page page_map figures                 HTML, its map, JSON
"""
