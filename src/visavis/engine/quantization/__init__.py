"""Weights of 8 and 4 bits: which matrices (`scheme`), their numbers (`codes`), our one layout of them (`weight`), and
how checkpoints become that (`places`, `checkpoints`)."""
