"""`python -m benchmarks.paths`: which path of the convolution is estimated to be faster, by shape and architecture."""

from datetime import date

from benchmarks.reports.paths import page
from benchmarks.reports.report import RESULTS, write_text


def main(results=RESULTS):
    text = page(date.today())
    write_text(results / f"{date.today()}-paths.md", text)
    print(text)


if __name__ == "__main__":
    main()
