"""``gpufair teams``: what each team may use, uses and borrows."""
