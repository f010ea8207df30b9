"""``gpufair explain``: why one run waits, or why it started when it did."""
