"""The ledger of claims, the rules that judge them, and the errata of the sources."""
