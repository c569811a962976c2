"""`python -m benchmarks.paths`: which path of the convolution is estimated to be faster, by shape and architecture."""

from datetime import date

from benchmarks.reports.paths import page
from benchmarks.reports.report import parser, write_text


def main(arguments=None):
    args = parser("paths", __doc__).parse_args(arguments)
    text = page(date.today())
    write_text(args.out / f"{date.today()}-paths.md", text)
    print(text)


if __name__ == "__main__":
    main()
