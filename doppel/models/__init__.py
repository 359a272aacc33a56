"""Models: the frozen base and its adapters, one loader, heads, encoders and judges of texts. Import its modules."""

import logging

# peft imports bitsandbytes where it is installed, which warns of a kernel that nothing here asks for
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
