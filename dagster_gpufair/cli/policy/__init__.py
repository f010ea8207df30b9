"""``gpufair policy`` and ``init``: the rules, as a file and in force."""
