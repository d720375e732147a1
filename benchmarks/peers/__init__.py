"""The other engines: each has an environment of its own (`install`) and is started with its best flags.

Nothing of Headrace imports them; `openvino_server` runs in OpenVINO's environment and knows the standard
library and `openvino_genai` only.
"""
