"""How bytes are crunched: an obvious reference, a compiled twin, and the choice between them."""
