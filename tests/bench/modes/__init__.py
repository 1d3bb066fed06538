"""Measures what each mode buys: right answers, tokens and time, on public sets with labels."""
