"""OpenCode's command line and configuration; no clock, file or network.

Facts about OpenCode were observed on 1.18.33 unless a comment names another version.
"""
