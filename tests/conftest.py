from hypothesis import settings

settings.register_profile("dbw", deadline=None)  # tests make no claims about elapsed time
settings.load_profile("dbw")
