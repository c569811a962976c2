"""The normalisation of images that mmdet's models of this form are trained with."""

# Of ImageNet's images in RGB.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
