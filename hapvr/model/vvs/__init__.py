"""VVS (Jo et al., AAAI 2024): one vector per video, in which frames without the video's topic hardly count."""
