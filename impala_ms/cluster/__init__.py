"""Who talks to whom: places, messages, hubs and spokes. Nothing here needs MindSpore."""
