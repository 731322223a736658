"""Token records: what the weights did to each token of some steps. Hosts write them, reports read them."""
