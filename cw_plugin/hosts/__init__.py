"""Each host (training framework): which shape it must have, where its batch is, and what is refused."""
