// Boost.JSON's implementation, compiled once for every room that uses it.
#include <boost/json/src.hpp>
