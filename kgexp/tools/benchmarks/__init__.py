"""The suites of `kgexp.tools.bench`, a module each."""
