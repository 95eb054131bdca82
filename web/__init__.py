"""The page for people: one run as it happens, rendered on the server, one small script, no build step.

`facts` asks Temporal what the run is, `totals` what it has used so far, `look` turns entries into HTML, `pages` answers
requests and `serving` puts it all behind one address beside the transcripts.
"""
