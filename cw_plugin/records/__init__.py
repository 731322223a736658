"""Token records: what the weights did to each token of some steps.

columns.py names their columns. Every run writes them (write.py), in its main process. lab/reports/read_records.py
reads them, for the token page, for the reports, and for the studies.
"""
