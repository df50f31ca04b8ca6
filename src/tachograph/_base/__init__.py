"""Small modules that every layer may use: clocks, the guard, HTTP, ranks. They import no other layer."""
