"""scikit-learn's handwritten digits (UCI, inside its wheel) as CSV: id, image as an array of 8x8 reals, label."""

import csv
import sys

from sklearn.datasets import load_digits

digits = load_digits()
out = csv.writer(sys.stdout)
for number, (image, label) in enumerate(zip(digits.images, digits.target)):
    rows = ("{" + ",".join(f"{pixel:g}" for pixel in row) + "}" for row in image)
    out.writerow([number, "{" + ",".join(rows) + "}", int(label)])
