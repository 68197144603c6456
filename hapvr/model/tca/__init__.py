"""TCA: a transformer over the frames of a video (Shao et al., WACV 2021)."""
