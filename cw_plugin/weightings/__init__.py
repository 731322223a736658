"""Token weightings of other papers, and one of our own. README.md lists them."""
