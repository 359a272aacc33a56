"""The guarantee: plan, account, sample, clip, noise, record.

Import from the rooms themselves (`doppel.privacy.accounting`, `.spec`, `.ledger`, …): this file imports
nothing, so that planning a run or reading a ledger loads neither PyTorch nor Lightning.
"""
