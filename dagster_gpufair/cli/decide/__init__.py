"""``gpufair decide``: what is decided in a case that is written down."""
