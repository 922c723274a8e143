"""A report of a run: its data as one dictionary (gather), and as one HTML file that needs nothing else (page).

The pages and pictures of the client are made of the same dictionary.
"""
