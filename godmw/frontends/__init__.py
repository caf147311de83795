"""One call in place of a loop, for scripts written for other frameworks' ways of starting."""
