"""Kill -9 torture and soak: processes that share one root, killed at random moments.

    python -m tests.torture --rounds 100     a round: an owner and four peers at work, SIGKILLs,
                                             restarts, then all is looked at by a new owner
    python -m tests.torture.soak             the same crowd for half an hour, memory watched

Who imports whom, downwards only:

    __main__  rounds -> verify, crowd -> worker -> deeds -> faces, universe
    soak      crowd, flat (the judge of its table)
              ledger: what the parent was told; used by crowd, rounds and verify

Bytes are a function of key and layer (universe), so every process checks every byte that it gets.
Children use public names of kvstore only.
"""
