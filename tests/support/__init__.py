"""What several tests share: references computed in another way, small cases, values to probe with."""
