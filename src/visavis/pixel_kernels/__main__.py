"""`python -m visavis.pixel_kernels` builds the library and says where it is."""

import sys

from visavis.compiling import BuildError
from visavis.pixel_kernels.library import build

if __name__ == "__main__":
    try:
        print(f"picture kernels: {build()._name}")
    except BuildError as error:
        print(f"not built: {error}; Pillow and torch prepare the images, slower", file=sys.stderr)
