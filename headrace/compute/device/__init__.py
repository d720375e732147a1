"""What the machine offers: cores, memory, instruction sets. `kinds/NAME` looks at one kind of device.

Must not know models, backends or requests.
"""
