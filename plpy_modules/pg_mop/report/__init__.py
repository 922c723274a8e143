"""A report of a run: its data as one dictionary (gather.py), and as one self-contained HTML file (page.py).

The client makes its pages and pictures from the same dictionary.
"""
