"""What `kvproof check` writes for others to read: SARIF for a code host, one HTML page for people.

Both are made from the plain data of a report, to which `details` adds what they need beside it.
"""

from .details import details
from .html_page import page
from .sarif import sarif

__all__ = ["details", "page", "sarif"]
