def ask(): pass
