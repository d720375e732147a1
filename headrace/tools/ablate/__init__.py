"""What each technique gains: the same load to a server with it and to one without it, in pairs.

`techniques` says what is switched and which load shows it, `launch` starts servers, `run` compares, `table`
tells. Servers are separate processes that are asked over HTTP, so a technique is measured as a user meets it.
"""
